package target

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// maxLogged bounds the bytes that are logged of one event.
const maxLogged = 8 << 10

// logTarget writes events to the process' log.
type logTarget struct{ log *zap.Logger }

func (*Factory) checkLog(*model.Target) model.FaultList { return nil }

func (f *Factory) openLog(s *model.Subscriber, _ time.Duration) (Target, error) {
	return &logTarget{log: f.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name))}, nil
}

// Deliver logs the events; of an event that is longer than 8 KiB, the beginning.
func (t *logTarget) Deliver(_ context.Context, batch []Delivery) []Result {
	results := make([]Result, len(batch))
	for i := range batch {
		d := &batch[i]
		content := d.Body
		if content == nil {
			content = d.Event.JSON
		}
		t.log.Info("event", zap.String("id", d.Event.ID), zap.String("source", d.Event.Source), zap.String("type", d.Event.Type),
			zap.Int("bytes", len(content)), zap.ByteString("event", content[:min(len(content), maxLogged)]))
		results[i].Verdict = Delivered
	}
	return results
}

// Close does nothing.
func (*logTarget) Close(context.Context) error { return nil }
