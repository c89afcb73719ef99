package message

import (
	"strconv"
	"time"
)

// noTime is EntryTime of a message without a time, where the system would make one.
const noTime = "none"

// maxSeconds is what milliseconds in an int64 can hold, and some years less.
const maxSeconds = 9_000_000_000_000_000

// exact is a time as a Message has it: UTC, whole milliseconds, no monotonic clock.
func exact(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	ns := t.Nanosecond()
	return time.Unix(t.Unix(), int64(ns-ns%1_000_000)).UTC()
}

// appendTime appends EntryTime: milliseconds, or seconds and an "s" where those are too
// many.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, noTime...)
	}
	if s := t.Unix(); s > maxSeconds || s < -maxSeconds {
		return append(strconv.AppendInt(b, s, 10), 's')
	}
	return strconv.AppendInt(b, t.UnixMilli(), 10)
}

func parseTime(text string) (time.Time, bool) {
	if text == noTime {
		return time.Time{}, true
	}
	seconds := text != "" && text[len(text)-1] == 's'
	if seconds {
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	if seconds {
		return time.Unix(n, 0).UTC(), true
	}
	return time.UnixMilli(n).UTC(), true
}

// fits reports whether t is a plain number of milliseconds, at least least.
func fits(t time.Time, least int64) bool {
	return t.Unix() <= maxSeconds && t.Unix() >= -1 && t.UnixMilli() >= least
}
