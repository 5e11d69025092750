"""Operations on a cluster, which the command line, the doctor and a console share."""
