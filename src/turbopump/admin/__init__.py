"""Operations on a cluster, shared by the command line, the doctor and a console."""
