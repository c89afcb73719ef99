package sonic

import (
	"encoding/json"
	"net/http"
	"time"
)

// Zones is what GET /zones shows.
type Zones struct {
	Zone   string       `json:"zone"`
	Outbox OutboxStatus `json:"outbox"`
	// Origins are the other zones.
	Origins []OriginStatus `json:"origins"`
}

// OutboxStatus is the way of this zone's effects to Pulsar.
type OutboxStatus struct {
	// Owner says that this process ships; otherwise another Sonic of the zone does, or none can.
	Owner bool `json:"owner"`
	// Shipped is the last effect that the topic is known to have.
	Shipped string `json:"shipped"`
	Epoch   int64  `json:"epoch"`
	// Length, Bytes and AgeSeconds are of what waits; -1: not known.
	Length     int64   `json:"length"`
	Bytes      int64   `json:"bytes"`
	AgeSeconds float64 `json:"age_seconds"`
	// Full says that a bound is exceeded.
	Full bool `json:"full"`
	// Held is how many effects wait in the memory of this process: with outbox off.
	Held int `json:"held"`
	// Skips says that effects are dropped at present, Noted how many keys, elements and counters wait for their state to be shipped because of that, Lost how
	// many effects are lost since the zone began, at most. -1: not known.
	Skips   bool   `json:"skips"`
	Noted   int64  `json:"noted"`
	Lost    int64  `json:"lost"`
	Trouble string `json:"trouble,omitempty"`
}

// OriginStatus is the way of another zone's effects to this one.
type OriginStatus struct {
	Zone string `json:"zone"`
	// Cursor is the origin's last effect that this zone has; as of some seconds ago where another process applies.
	Cursor string `json:"cursor"`
	// LagSeconds and LagCommands say how far this zone is behind; -1: not known yet, right after the start. LagSeconds rises while nothing is heard.
	LagSeconds  float64 `json:"lag_seconds"`
	LagCommands int64   `json:"lag_commands"`
	// LagP50Seconds and LagP99Seconds are of the messages that this process has applied in the last minute; -1: it has applied none.
	LagP50Seconds float64 `json:"lag_p50_seconds"`
	LagP99Seconds float64 `json:"lag_p99_seconds"`
	// Differs names what that zone has otherwise in its configuration and must have equal.
	Differs []string `json:"configuration_differs,omitempty"`
	// Gap says that effects are missing that the topic does not have any more.
	Gap bool `json:"gap"`
	// Trouble is what is the matter now, LastError what was last.
	Trouble     string     `json:"trouble,omitempty"`
	LastError   string     `json:"last_error,omitempty"`
	LastErrorAt *time.Time `json:"last_error_at,omitempty"`
}

// status looks at all parts.
func (s *service) status() Zones {
	shipper, gauge := s.shipper.Status(), s.gauge.state()
	z := Zones{Zone: s.cfg.Zone, Origins: []OriginStatus{}, Outbox: OutboxStatus{
		Owner: shipper.Owner, Shipped: shipper.Stored.String(), Epoch: shipper.Epoch,
		Length: gauge.length, Bytes: gauge.bytes, AgeSeconds: gauge.age.Seconds(), Full: gauge.full,
		Held: shipper.Held, Skips: gauge.unsent.Skips, Noted: gauge.unsent.Noted, Lost: gauge.unsent.Lost, Trouble: text(s.shipper.Trouble()),
	}}
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
		at, trouble, last := a.Trouble()
		o.Trouble, o.LastError = text(trouble), text(last)
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

// page answers GET /zones.
func (s *service) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	_ = out.Encode(s.status()) // fails only when the client is gone
}
