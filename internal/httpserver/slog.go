package httpserver

import (
	"context"
	"log/slog"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// slogHandler passes the log records of exporter-toolkit to zap.
type slogHandler struct {
	log   *zap.Logger
	attrs []zap.Field
}

func zapLevel(level slog.Level) zapcore.Level {
	switch {
	case level < slog.LevelInfo:
		return zapcore.DebugLevel
	case level < slog.LevelWarn:
		return zapcore.InfoLevel
	case level < slog.LevelError:
		return zapcore.WarnLevel
	default:
		return zapcore.ErrorLevel
	}
}

func (h slogHandler) Enabled(_ context.Context, level slog.Level) bool {
	return h.log.Core().Enabled(zapLevel(level))
}

func (h slogHandler) Handle(_ context.Context, r slog.Record) error {
	fields := slices.Clone(h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "http2" { // the web configuration allows HTTP/2, but NewServer never speaks it
			fields = append(fields, zap.Any(a.Key, a.Value.Any()))
		}
		return true
	})
	h.log.Log(zapLevel(r.Level), r.Message, fields...)
	return nil
}

func (h slogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.attrs = append(slices.Clip(h.attrs), zap.Any(a.Key, a.Value.Any()))
	}
	return h
}

func (h slogHandler) WithGroup(string) slog.Handler { return h }
