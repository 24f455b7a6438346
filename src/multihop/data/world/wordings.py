"""Wordings of whole questions: branches, family, comparisons ({a} and {b} are what is compared)."""

YEAR_OF = {  # "in the year when …": literal years that can be one branch of a question
    "novel_year": "{x} was published",
    "film_year": "{x} was released",
    "album_year": "{x} was released",
    "paper_year": "{x} was founded",
    "firm_year": "{x} was founded",
    "building_year": "{x} was opened",
    "prize_year": "{x} was first awarded",
}

FAMILY = {  # two family relations in a row have a name of their own
    ("father", "father"): "paternal grandfather",
    ("father", "mother"): "paternal grandmother",
    ("mother", "father"): "maternal grandfather",
    ("mother", "mother"): "maternal grandmother",
    ("spouse", "father"): "father-in-law",
    ("spouse", "mother"): "mother-in-law",
}

CREATOR = {
    "novel": "author",
    "film": "director",
    "album": "performer",
    "newspaper": "paper_founder",
    "building": "architect",
    "firm": "firm_founder",
    "event": "winner",
    "prize": "donor",
}

# relation -> (questions that the smaller value answers, questions that the larger one answers)
COMPARE: dict[str, tuple[str, str]] = {
    "birth_date": (
        "Who was born first, {a} or {b}?/Who was older, {a} or {b}?/Of {a} and {b}, who was born earlier?",
        "Who was born later, {a} or {b}?/Who was younger, {a} or {b}?",
    ),
    "death_date": (
        "Who died first, {a} or {b}?/Who died earlier, {a} or {b}?",
        "Who died later, {a} or {b}?",
    ),
    "novel_year": (
        "Which novel was published first, {a} or {b}?/Which novel is older, {a} or {b}?",
        "Which novel was published later, {a} or {b}?",
    ),
    "film_year": (
        "Which film was released first, {a} or {b}?/Which film came out earlier, {a} or {b}?",
        "Which film was released more recently, {a} or {b}?",
    ),
    "album_year": ("Which album was released first, {a} or {b}?", "Which album came out later, {a} or {b}?"),
    "paper_year": (
        "Which newspaper was founded first, {a} or {b}?",
        "Which newspaper is younger, {a} or {b}?",
    ),
    "firm_year": (
        "Which company was founded first, {a} or {b}?/Which company is older, {a} or {b}?",
        "Which company was founded later, {a} or {b}?",
    ),
    "building_year": (
        "Which one was opened first, {a} or {b}?",
        "Which one was opened more recently, {a} or {b}?",
    ),
    "event_date": (
        "Which contest took place first, {a} or {b}?",
        "Which contest took place later, {a} or {b}?",
    ),
    "population": (
        "Which town has fewer inhabitants, {a} or {b}?/Which town has the smaller population, {a} or {b}?",
        "Which town has more inhabitants, {a} or {b}?/Which town has the larger population, {a} or {b}?",
    ),
    "charter_year": (
        "Which town received its charter first, {a} or {b}?",
        "Which town received its charter later, {a} or {b}?",
    ),
    "employees": (
        "Which company has fewer employees, {a} or {b}?",
        "Which company has more employees, {a} or {b}?",
    ),
    "minutes": ("Which film is shorter, {a} or {b}?", "Which film has the longer running time, {a} or {b}?"),
    "chapters": ("Which novel has fewer chapters, {a} or {b}?", "Which novel has more chapters, {a} or {b}?"),
}

SAME: dict[str, str] = {  # yes/no: do the two subjects have the same object?
    "birthplace": "Were {a} and {b} born in the same town?",
    "region": "Are {a} and {b} in the same region?/Do the towns {a} and {b} belong to the same region?",
    "hq": "Do {a} and {b} have their head offices in the same town?",
    "filmed_in": "Were {a} and {b} shot in the same town?",
    "publisher": "Were {a} and {b} published by the same company?",
    "studio": "Were {a} and {b} produced by the same company?",
    "author": "Were {a} and {b} written by the same person?",
    "director": "Were {a} and {b} directed by the same person?",
    "country": "Are {a} and {b} regions of the same country?/Do {a} and {b} belong to the same country?",
    "event_town": "Were {a} and {b} held in the same town?",
    "building_town": "Are {a} and {b} in the same town?",
    "death_place": "Did {a} and {b} die in the same town?",
    "owner": "Are {a} and {b} owned by the same company?",
    "architect": "Were {a} and {b} designed by the same person?",
}

BRIDGE: dict[str, tuple[str, str]] = {  # comparisons of two creators: (earlier, later)
    "birth_date": (
        "Which {kind} has the {maker} who was born first, {a} or {b}?/"
        "Which {kind} had an older {maker}, {a} or {b}?",
        "Which {kind} has the {maker} who was born later, {a} or {b}?/"
        "Which {kind} had a younger {maker}, {a} or {b}?",
    ),
    "death_date": (
        "Which {kind} has the {maker} who died first, {a} or {b}?",
        "Which {kind} has the {maker} who died later, {a} or {b}?",
    ),
}
BRIDGE_SAME: dict[str, str] = {
    "birthplace": "Were the {maker} of {a} and the {maker} of {b} born in the same town?",
    "death_place": "Did the {maker} of {a} and the {maker} of {b} die in the same town?",
}
