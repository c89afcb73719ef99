package nightingale

// memoryBase is for all that is not a body or a message.
const memoryBase = 64 << 20

// memoryLimit is what the configuration lets the process hold, roughly: the bodies
// of requests in flight, the publish queue, and the rest.
func memoryLimit(cfg Config) int64 {
	return int64(cfg.Limits.InFlightBytes) + cfg.Profile.MaxPendingBytes + memoryBase
}
