package messaging

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// copyRecord detaches a record from the frame it came from.
func copyRecord(r *Record) Record {
	c := *r
	c.Payload = bytes.Clone(r.Payload)
	c.Properties = maps.Clone(r.Properties)
	return c
}

func readAll(t *testing.T, frame []byte) []Record {
	t.Helper()
	var got []Record
	require.NoError(t, ReadFrame(frame, func(r *Record) error {
		got = append(got, copyRecord(r))
		return nil
	}))
	return got
}

func TestFrameRoundTrip(t *testing.T) {
	want := []Record{
		{Key: "k", Payload: []byte("v")},
		{},                                // a null value
		{Key: "empty", Payload: []byte{}}, // an empty value is not a null one
		{Payload: bytes.Repeat([]byte("x"), 300), Key: string(bytes.Repeat([]byte("k"), 200))},
		{Payload: []byte{1}, EventTime: time.UnixMilli(1_700_000_000_123), Properties: map[string]string{"a": "1", "": ""}},
		{Payload: []byte{2}, EventTime: time.UnixMilli(-5)},
	}
	var w FrameWriter
	for range 2 { // a writer serves many frames
		w.Reset(nil)
		for i := range want {
			w.Add(&want[i])
		}
		frame := w.Bytes()
		require.Equal(t, len(want), w.Len())
		require.Equal(t, len(frame), w.Size())
		require.True(t, IsFrame(frame))
		require.Equal(t, want, readAll(t, frame))
	}
}

func TestFrameLayout(t *testing.T) {
	var w FrameWriter
	w.Add(&Record{Key: "k", Payload: []byte("v"), EventTime: time.UnixMilli(1)})
	// Written out by hand from the layout in the package's documentation.
	body := []byte{6, 0b11, 1, 'k', 2, 0, 'v'}
	want := append([]byte("AVFR\x01\x10\x00\x00\x00\x00\x00\x01"), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(want[12:], crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
	require.Equal(t, append(want, body...), w.Bytes())
}

func TestFrameEmpty(t *testing.T) {
	var w FrameWriter
	require.Empty(t, readAll(t, w.Bytes()))
}

func TestFrameHandlerErrorStops(t *testing.T) {
	var w FrameWriter
	w.Add(&Record{})
	w.Add(&Record{})
	boom := errors.New("boom")
	n := 0
	require.ErrorIs(t, ReadFrame(w.Bytes(), func(*Record) error { n++; return boom }), boom)
	require.Equal(t, 1, n)
}

func TestFrameDamage(t *testing.T) {
	var w FrameWriter
	w.Add(&Record{Key: "key", Payload: []byte("payload"), Properties: map[string]string{"a": "b"}})
	frame := bytes.Clone(w.Bytes())
	ignore := func(*Record) error { return nil }

	require.ErrorIs(t, ReadFrame(nil, ignore), ErrNotFrame)
	require.ErrorIs(t, ReadFrame([]byte("AVF"), ignore), ErrNotFrame)
	for i := range frame { // every flipped byte is noticed
		bad := bytes.Clone(frame)
		bad[i] ^= 0x55
		err := ReadFrame(bad, ignore)
		require.Error(t, err, "byte %d", i)
		require.True(t, errors.Is(err, ErrBadFrame) || errors.Is(err, ErrNotFrame), "byte %d: %v", i, err)
	}
	for n := range frame { // and every cut
		require.Error(t, ReadFrame(frame[:n], ignore), "cut at %d", n)
	}
	require.ErrorIs(t, ReadFrame(append(bytes.Clone(frame), 0), ignore), ErrBadFrame)
}

// reseal makes the checksum of a tampered frame right, so that the parser behind
// it is what is tested.
func reseal(frame []byte) []byte {
	if len(frame) >= frameHeader {
		binary.BigEndian.PutUint32(frame[12:], crc32.Checksum(frame[frameHeader:], castagnoli()))
	}
	return frame
}

func FuzzReadFrame(f *testing.F) {
	var w FrameWriter
	w.Add(&Record{Key: "k", Payload: []byte("v"), EventTime: time.UnixMilli(7), Properties: map[string]string{"a": "b"}})
	w.Add(&Record{})
	f.Add(bytes.Clone(w.Bytes()))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = reseal(bytes.Clone(b))
		var again FrameWriter
		if err := ReadFrame(b, func(r *Record) error { again.Add(r); return nil }); err != nil {
			return
		}
		// What reads without error survives being written and read again.
		first, second := readAll(t, b), readAll(t, again.Bytes())
		require.Equal(t, fmt.Sprint(first), fmt.Sprint(second))
	})
}

func BenchmarkFrame(b *testing.B) {
	r := Record{Key: "0123456789abcdef", Payload: make([]byte, 200)}
	var w FrameWriter
	b.ReportAllocs()
	b.SetBytes(int64(len(r.Payload)))
	for i := range b.N {
		if i%1000 == 0 {
			w.Reset(nil)
		}
		w.Add(&r)
	}
}

// sealed is a frame of one record with the given bytes.
func sealed(record []byte) []byte {
	frame := append([]byte(frameMagic), frameVersion, frameHeader)
	frame = append(frame, make([]byte, frameHeader-len(frame))...)
	binary.BigEndian.PutUint32(frame[8:], 1)
	frame = binary.AppendUvarint(frame, uint64(len(record)))
	return reseal(append(frame, record...))
}

// A frame that says it has millions of properties costs no more than they can be.
func TestFrameOfManyPropertiesTakesLittleMemory(t *testing.T) {
	const size = 5 << 20
	record := append(binary.AppendUvarint([]byte{0, 0}, size/2-100), make([]byte, size)...)
	for name, frame := range map[string][]byte{"empty names": sealed(record), "cut short": sealed(record[:size/2])} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := ReadFrame(frame, func(*Record) error { return nil })
		runtime.ReadMemStats(&after)
		require.ErrorIs(t, err, ErrBadFrame, name)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), name)
	}
}

// Many records with properties of their own share one map.
func TestFrameRecordsShareTheirMap(t *testing.T) {
	var w FrameWriter
	for i := range 100_000 {
		w.Add(&Record{Properties: map[string]string{"n": fmt.Sprint(i % 10)}, Payload: []byte{}})
	}
	frame := w.Bytes()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	n := 0
	require.NoError(t, ReadFrame(frame, func(r *Record) error {
		if len(r.Properties) != 1 || r.Properties["n"] != string(byte('0'+n%10)) {
			return fmt.Errorf("record %d: %v", n, r.Properties)
		}
		n++
		return nil
	}))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(3*len(frame)))
}
