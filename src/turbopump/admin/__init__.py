"""Operations on a cluster: what the command line, the doctor and a console share."""
