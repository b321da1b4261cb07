"""The accuracy tasks by name."""

from benchmarks.tasks.base import Task
from benchmarks.tasks.digits import DIGITS
from benchmarks.tasks.images import EFFICIENTNET, ORIENTATION
from benchmarks.tasks.ocr import CAPTCHA, DETECTION, RECOGNITION
from benchmarks.tasks.texts import MAGIKA, MINILM

TASKS: dict[str, Task] = {
    task.name: task for task in (ORIENTATION, EFFICIENTNET, RECOGNITION, DETECTION, MAGIKA, MINILM, CAPTCHA, DIGITS)
}
