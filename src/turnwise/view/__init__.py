"""What a run is and was, for people: a run directory comes in; a page, one HTML file and terminal views go out."""
