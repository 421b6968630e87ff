"""Large and old things in object storage: archives of runs, content of facts. A folder, or S3 by its URL."""
