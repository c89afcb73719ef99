package nightingale

const (
	// memoryBase is for all that is not a body or a message.
	memoryBase = 64 << 20
	// pendingOverhead is what the client underneath takes for a record until it is
	// acknowledged: 100,000 records of 250 bytes took 154 MiB besides their own 38.
	pendingOverhead = 1536
)

// memoryLimit is what the configuration lets the process hold, roughly: the bodies
// and messages of requests in flight, the publish queue, and the rest. The queue's
// payloads are those in flight; what comes on top are copies in batches, or for small
// records what each takes.
func memoryLimit(cfg Config) int64 {
	queue := max(cfg.Profile.MaxPendingBytes, int64(cfg.Profile.MaxPendingRecords)*pendingOverhead)
	return int64(cfg.Limits.InFlightBytes) + queue + memoryBase
}
