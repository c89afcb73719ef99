package door

import (
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// refusalInterval is how often one reason is logged. Each refusal is counted in
// the service's metrics.
const refusalInterval = 10 * time.Second

// RefusalLog logs what senders are refused: once per interval for each reason, which
// are few. It is safe for concurrent use.
type RefusalLog struct{ log *zap.Logger }

// NewRefusalLog returns one that writes to log.
func NewRefusalLog(log *zap.Logger) RefusalLog {
	return RefusalLog{log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, refusalInterval, 1, 0) // by the message
	}))}
}

// maxTenant bounds a tenant's name, which may be what a sender claims.
const maxTenant = 150 // bytes

// Note logs a refusal of a request of tenant.
func (l RefusalLog) Note(r *http.Request, tenant string, refused *Refusal) {
	level := zap.WarnLevel
	if refused.Status == StatusHungUp {
		level = zap.DebugLevel // it comes again
	}
	entry := l.log.Check(level, "refused a request: "+refused.Reason)
	if entry == nil {
		return
	}
	entry.Write(zap.Int("status", refused.Status), zap.String("text", Cut(refused.Text, MaxAnswer)),
		zap.String("tenant", Cut(tenant, maxTenant)), zap.String("sender", r.RemoteAddr))
}
