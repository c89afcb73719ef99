package nightingale

const (
	// memoryBase is the memory for everything except bodies and messages.
	memoryBase = 64 << 20
	// pendingOverhead is how many bytes the Pulsar client needs for a record until it is
	// acknowledged. Measured: 100,000 records of 250 bytes took 154 MiB besides their own 38 MiB.
	pendingOverhead = 1536
)

// memoryLimit returns how much memory the process needs at most with this configuration, roughly:
// for the bodies and messages of requests in flight, the publish queue, and the rest. The payloads
// in the queue are already counted as in flight. The queue adds copies in batches or, for small
// records, the overhead of each.
func memoryLimit(cfg Config) int64 {
	queue := max(cfg.Profile.MaxPendingBytes, int64(cfg.Profile.MaxPendingRecords)*pendingOverhead)
	return int64(cfg.Limits.InFlightBytes) + queue + memoryBase
}
