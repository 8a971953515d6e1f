"""Which model service answers a call, and why: pure decisions over what is known of the services.

The central calls::

    router = Router(backends, routes={"coder": ("haiku", "sonnet")})    # `dsec.routing.router`
    blocks = prefix_blocks([system, tools, *messages])                  # `dsec.routing.blocks`, bytes in prompt order
    request = RouteRequest(model="coder", blocks=blocks, input_tokens=20_000, output_tokens=300, episode="e7")

    router.decide(request, now_s)         # Choice | Refusal; changes nothing
    router.explain(request, now_s)        # the same decision with every candidate and why
    call = router.assign(request, choice, now_s)     # it waits there now, and counts against the limits
    router.start(call, now_s)             # it has a slot
    router.begin(call, now_s)             # the first byte of the answer came
    router.finish(call, now_s, usage=usage)          # it ended well; the usage corrects what is known of the cache
    router.finish(call, now_s, failure=failure)      # it failed; pauses and health follow
    router.withdraw(call, now_s)          # it was taken back before it was sent: nothing counts
    router.statistics(now_s)              # a frozen value per backend

    failure_of(status, headers, body)                # a Failure from an HTTP answer, `dsec.routing.failures`
    RetryPolicy().after(failures, now_s=..., deadline_s=..., bits=..., others=...)   # Again | GiveUp, `.retrying`
    FairQueue(weights)                               # whose turn it is: offer, take, withdraw, charge, `.fairness`
    read_usage(report, seen)                         # Usage from whatever a backend reports, `.usage_reading`
    shipped_prices().model("claude-sonnet-5")        # prices with their day and source, `.price_table`

All times are seconds on one clock that never goes back; it is passed in.
"""
