// Package delivery delivers to each subscriber what the engine has stored for it.
//
// Each active subscriber has a worker (worker.go) with its own consumer of its send topic and of
// its topic of replays. The subscriber's order decides the type of the subscription. The path of an
// event is in attempt.go: the worker decodes and transforms it, waits for the rate limit and the
// breaker (breaker.go), and gives it to the target, alone or in a batch (batcher.go). The result
// decides the verdict: the worker acknowledges the event, tries it again later, or makes it a dead
// letter. Workers share nothing that one of them could block.
//
// Jobs send dead letters again and replay past events (job.go, job_run.go, redrive.go, replay.go). A
// subscriber has at most one job at a time.
package delivery
