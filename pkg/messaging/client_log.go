package messaging

import (
	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"
)

// rawLogger carries the underlying client's log lines to zap. Its info lines tell
// of every connection and producer; they are debug lines here, since this package
// logs what matters of them once. Its debug calls stand on the hot path and are
// dropped unread.
type rawLogger struct{ s *zap.SugaredLogger }

var _ log.Logger = rawLogger{}
var _ log.Entry = rawLogger{}

func (l rawLogger) SubLogger(f log.Fields) log.Logger { return rawLogger{l.s.With(pairs(f)...)} }
func (l rawLogger) WithFields(f log.Fields) log.Entry { return rawLogger{l.s.With(pairs(f)...)} }
func (l rawLogger) WithError(err error) log.Entry     { return rawLogger{l.s.With(zap.Error(err))} }
func (l rawLogger) WithField(name string, v any) log.Entry {
	return rawLogger{l.s.With(name, v)}
}

func (l rawLogger) Debug(...any)              {}
func (l rawLogger) Debugf(string, ...any)     {}
func (l rawLogger) Info(args ...any)          { l.s.Debug(args...) }
func (l rawLogger) Infof(f string, a ...any)  { l.s.Debugf(f, a...) }
func (l rawLogger) Warn(args ...any)          { l.s.Debug(args...) }
func (l rawLogger) Warnf(f string, a ...any)  { l.s.Debugf(f, a...) }
func (l rawLogger) Error(args ...any)         { l.s.Debug(args...) }
func (l rawLogger) Errorf(f string, a ...any) { l.s.Debugf(f, a...) }

func pairs(f log.Fields) []any {
	kv := make([]any, 0, 2*len(f))
	for k, v := range f {
		kv = append(kv, k, v)
	}
	return kv
}
