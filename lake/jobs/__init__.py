"""Jobs over topics and tables: each is a plan, work items and a result, and may run again."""
