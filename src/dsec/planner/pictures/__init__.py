"""Drawings of what `dsec.planner.picture` describes, for light and dark pages, and a report that holds them."""

from dsec.planner.pictures.drawing import write_pictures as write_pictures
from dsec.planner.pictures.page import write_page as write_page
