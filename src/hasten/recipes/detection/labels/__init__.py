"""Read box labels in common formats, YOLO text, Pascal VOC XML or COCO JSON, into one form.

findings = Findings()
labelled = read_labels(Path("photos"), Path("labels"), findings)
print(findings.words())     what could not be used, with file and line
"""

from hasten.recipes.detection.labels.contract import Box, Item, Labelled
from hasten.recipes.detection.labels.read import read_labels

__all__ = ["Box", "Item", "Labelled", "read_labels"]
