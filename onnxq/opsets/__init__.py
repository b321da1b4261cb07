"""From one opset to another: nodes that change meaning, and the opset a Q/DQ pair needs."""
