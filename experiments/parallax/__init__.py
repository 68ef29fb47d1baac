"""The tables and figures of Parallax (EuroSys 2019 and the arXiv version), measured here and predicted for the paper's cluster."""
