"""Jobs over a cluster's objects. Each is a plain function: it plans work items, which are small
values that any process can be given; works them through with a runner; and returns figures. Nothing
is lost when it is killed anywhere or runs twice at once, and the next run goes on.
"""
