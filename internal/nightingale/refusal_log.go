package nightingale

import (
	"net/http"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// refusalInterval is how often one reason is logged. Each refusal is counted in
// nightingale_requests_refused_total.
const refusalInterval = 10 * time.Second

// refusalLog logs what senders are refused: once per interval for each reason, which
// are few.
type refusalLog struct{ log *zap.Logger }

func newRefusalLog(log *zap.Logger) refusalLog {
	return refusalLog{log.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(core, refusalInterval, 1, 0) // by the message
	}))}
}

func (l refusalLog) note(r *http.Request, refused *refusal) {
	level := zap.WarnLevel
	if refused.status == statusHungUp {
		level = zap.DebugLevel // it comes again
	}
	entry := l.log.Check(level, "refused a request: "+refused.reason)
	if entry == nil {
		return
	}
	entry.Write(zap.Int("status", refused.status), zap.String("text", cut(refused.text, maxAnswer)),
		zap.String("tenant", cut(r.Header.Get(tenantHeader), maxTenant)), zap.String("sender", r.RemoteAddr))
}
