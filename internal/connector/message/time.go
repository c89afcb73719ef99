package message

import (
	"strconv"
	"time"
)

// noTime is the EntryTime of a message without a time, in a system that would add one.
const noTime = "none"

// maxSeconds is somewhat less than the seconds that milliseconds in an int64 can hold.
const maxSeconds = 9_000_000_000_000_000

// truncateTime returns t as a Message has it: UTC, whole milliseconds, no monotonic clock.
func truncateTime(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	ns := t.Nanosecond()
	return time.Unix(t.Unix(), int64(ns-ns%1_000_000)).UTC()
}

// appendTime appends EntryTime: "none", milliseconds since 1970, or seconds and an "s" if an int64
// cannot hold the milliseconds.
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

// fitsMillis reports whether t is a number of milliseconds that is at least least.
func fitsMillis(t time.Time, least int64) bool {
	return t.Unix() <= maxSeconds && t.Unix() >= -1 && t.UnixMilli() >= least
}
