from turbopump.admin.doctor.diagnosis import Diagnosis, Level
from turbopump.admin.doctor.examination import examine_cluster

__all__ = ["Diagnosis", "Level", "examine_cluster"]
