package refusal

import (
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// logInterval is how often one reason is logged. Each refusal is counted in
// the service's metrics.
const logInterval = 10 * time.Second

// Log logs refused requests: once per interval for each reason. It is safe for concurrent use.
type Log struct{ log *zap.Logger }

// NewLog returns a Log that writes to log.
func NewLog(log *zap.Logger) Log {
	return Log{log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, logInterval, 1, 0) // by the message
	}))}
}

// maxTenant bounds a tenant's name, which may come from an unknown sender.
const maxTenant = 150 // bytes

// Write logs that a request of tenant was refused.
func (l Log) Write(r *http.Request, tenant string, refused *Error) {
	level := zap.WarnLevel
	if refused.Status == StatusClientClosed {
		level = zap.DebugLevel // the sender sends it again
	}
	entry := l.log.Check(level, "refused a request: "+refused.Reason)
	if entry == nil {
		return
	}
	entry.Write(zap.Int("status", refused.Status), zap.String("text", truncate.Text(refused.Text, MaxAnswer)),
		zap.String("tenant", truncate.Text(tenant, maxTenant)), zap.String("sender", r.RemoteAddr))
}
