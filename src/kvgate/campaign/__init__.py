"""L6: starts arms, schedules work, resumes, and turns records into evidence. The only place where all parts meet."""
