package sonic

import (
	"encoding/json"
	"net/http"
	"time"
)

// Zones is the answer to GET /zones.
type Zones struct {
	Zone string `json:"zone"`
	// Cluster is the zone's Redis Cluster, nil if its Redis is none.
	Cluster *ClusterStatus `json:"cluster,omitempty"`
	// Outbox is absent with a Redis Cluster if the zone is alone.
	Outbox OutboxStatus `json:"outbox,omitzero"`
	// Origins are the other zones.
	Origins []OriginStatus `json:"origins"`
}

// OutboxStatus is the state of publishing this zone's effects to Pulsar.
type OutboxStatus struct {
	// Owner says that this process publishes the effects. If false, another Sonic of the zone does,
	// or none can.
	Owner bool `json:"owner"`
	// Shipped is the last effect that is known to be stored in the topic.
	Shipped string `json:"shipped"`
	Epoch   int64  `json:"epoch"`
	// Length, Bytes and AgeSeconds describe the effects that wait in the outbox; -1: not known. Of a
	// Redis Cluster Length is never known.
	Length     int64   `json:"length"`
	Bytes      int64   `json:"bytes"`
	AgeSeconds float64 `json:"age_seconds"`
	// Full says that a bound is exceeded.
	Full bool `json:"full"`
	// Dropping says that effects are being dropped at present. PendingResends is how many keys,
	// elements and counters are noted because of that: their state is still to be published. Lost
	// is how many effects at most were lost since the zone began. -1: not known.
	Dropping       bool   `json:"dropping"`
	PendingResends int64  `json:"pending_resends"`
	Lost           int64  `json:"lost"`
	Unhealthy      string `json:"unhealthy,omitempty"`
}

// OriginStatus is the state of applying another zone's effects to this zone.
type OriginStatus struct {
	Zone string `json:"zone"`
	// Cursor is the last effect of the origin that this zone has applied. It is some seconds old if
	// another process applies the effects.
	Cursor string `json:"cursor"`
	// LagSeconds and LagCommands say how far this zone is behind; -1: not known yet, right after
	// the start. LagSeconds rises while no message arrives from the origin.
	LagSeconds  float64 `json:"lag_seconds"`
	LagCommands int64   `json:"lag_commands"`
	// LagP50Seconds and LagP99Seconds cover the messages that this process has applied in the last
	// minute; -1: it has applied none.
	LagP50Seconds float64 `json:"lag_p50_seconds"`
	LagP99Seconds float64 `json:"lag_p99_seconds"`
	// Differs names the keys of the configuration that must be equal in all zones, and differ in
	// that zone.
	Differs []string `json:"configuration_differs,omitempty"`
	// Gap says that effects are missing, and that the topic does not have them any more.
	Gap bool `json:"gap"`
	// Unhealthy is the present error, LastError the most recent one.
	Unhealthy   string     `json:"unhealthy,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
}

// status collects the state of all parts.
func (s *service) status() Zones {
	z := Zones{Zone: s.cfg.Zone, Origins: []OriginStatus{}}
	if s.cluster != nil {
		z.Cluster = s.cluster.status()
	}
	if s.shipper == nil {
		return z
	}
	shipper, outbox := s.shipper.Status(), s.monitor.state()
	z.Outbox = OutboxStatus{
		Owner: shipper.Owner, Shipped: shipper.Stored.String(), Epoch: shipper.Epoch,
		Length: outbox.Entries, Bytes: outbox.Bytes, AgeSeconds: outbox.Age.Seconds(), Full: outbox.full,
		Dropping: outbox.Dropping, PendingResends: outbox.Noted, Lost: outbox.Lost, Unhealthy: text(s.shipper.Unhealthy()),
	}
	now := time.Now()
	for i, a := range s.appliers {
		st := a.Status()
		o := OriginStatus{Zone: s.cfg.zones()[i+1], Cursor: st.Cursor.String(), LagSeconds: -1, LagCommands: -1, LagP50Seconds: -1, LagP99Seconds: -1, Gap: st.Gap, Differs: st.Differs}
		if st.Lags.Messages > 0 {
			o.LagP50Seconds, o.LagP99Seconds = st.Lags.P50.Seconds(), st.Lags.P99.Seconds()
		}
		if lag, effects, known := st.Behind(now); known {
			o.LagSeconds, o.LagCommands = lag.Seconds(), effects
		}
		at, unhealthy, last := a.Health()
		o.Unhealthy, o.LastError = text(unhealthy), text(last)
		if last != nil {
			o.LastErrorAt = &at
		}
		z.Origins = append(z.Origins, o)
	}
	return z
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// zonesPage answers GET /zones.
func (s *service) zonesPage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(s.status()) // fails only when the client has disconnected
}
