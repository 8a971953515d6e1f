"""Pure policy of one node's pools: how many sandboxes stand ready, who gets one, who is admitted, what is tried again.

The central calls::

    pool = Pool(PoolPolicy(recycles_at_once=2 * cores, maximum=800))
    actions = pool.handle(event, now_s)      # an event of `dsec.pools.events` in, actions of `dsec.pools.actions` out
    pool.statistics(now_s)                   # a frozen `dsec.model.pool.PoolStatistics`

    admission = Admission(AdmissionPolicy())
    verdict = admission.judge(pressure)               # why not, with measured value, threshold and when to ask again

    next_step(RetryPolicy(), failures, code)          # at once, another node, report
"""
