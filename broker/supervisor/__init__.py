"""Several nodes of one machine under one supervisor: started, restarted, replaced one by one."""
