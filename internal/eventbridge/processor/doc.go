// Package processor delivers to each subscriber what the engine has stored for it.
//
// Each active subscriber has a worker (worker.go) with a consumer of its own, of the subscription type that its order
// needs, over its send topic and the topic of replays. The way of an event: decoded and transformed, it waits for the
// breaker (breaker.go) and the rate, and is given to the target (attempt.go), alone or in a batch (gather.go). What came
// of it is the verdict: acknowledged, tried again later (retry.go), or a dead letter. Workers share nothing that one of
// them could hold up.
//
// Dead letters go back, and past events come again, by jobs (job.go, redrive.go, replay.go), at most one for each
// subscriber.
package processor
