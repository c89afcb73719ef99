// Package delivery is the role processor: it delivers copies to subscribers.
//
// Each active subscriber has a worker (worker.go), which consumes its send topic and its topic of
// replays. A worker decodes and transforms an event, waits for the rate limit and the breaker
// (breaker.go), and gives the event to the target, in a request with others if batches are
// configured (batcher.go). The result decides: acknowledge, retry, or dead letter (attempt.go).
// Jobs redrive, discard and replay events (job.go, job_run.go, redrive.go, replay.go). Of
// Eventbridge, the package imports event, registry, target and template.
package delivery
