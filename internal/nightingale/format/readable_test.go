package format

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	gogo "github.com/gogo/protobuf/proto"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// FuzzReadable: what was accepted decodes again from every format, sample by sample, with readers as
// strict as those of Google's protobuf libraries for Go, Python and Java, and of encoding/json.
func FuzzReadable(f *testing.F) {
	for _, body := range unusualBodies(f) {
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for version := range remotewrite.Protocols() {
			for _, format := range All() {
				readable(t, version, body, format)
			}
		}
	})
}

// unusualBodies returns bodies of both protocols with everything that there is, and with what
// decoders may take differently.
func unusualBodies(t testing.TB) [][]byte {
	t.Helper()
	bodies := [][]byte{
		writetest.Marshal(t, writetest.Everything()), writetest.Marshal(t, writetest.Request(3, 3)), writetest.MarshalV2(t, writetest.EverythingV2()),
		writetest.MarshalV2(t, writetest.FlawedV2()), writetest.MarshalV2(t, writetest.RequestV2(3, 3)),
	}
	field, concat := writetest.Field, slices.Concat[[]byte]
	text := func(number byte, s string) []byte { return field(number, []byte(s)) }
	name := field(1, concat(text(1, "__name__"), text(2, "m")))
	sample := field(2, []byte{2 << 3, 1})
	series := func(parts ...[]byte) []byte { return field(1, concat(parts...)) }
	bodies = append(bodies,
		series(name, field(1, concat(text(1, "\xff"), text(1, "job"), text(2, "a"))), sample),                           // the name twice
		series(name, field(1, concat(text(1, "job"), text(2, "\xff"), text(2, "a"))), sample),                           // the value twice
		series(name, sample, field(3, concat(field(1, concat(text(1, "\xff"), text(1, "id"), text(2, "7")))))),          // in an exemplar
		series(name, sample, field(3, concat(field(1, concat(text(1, "a"), text(2, "1"), text(1, "a"))), text(9, "")))), // and an unknown field
		series(name, sample, text(7, "\xff")),
		slices.Concat([]byte{1<<3 | 2 | 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0}, series(name, sample)[1:]), // the series' tag has seven bytes
		series(name, sample, []byte{0xba, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00, 1, 'x'}),                    // a tag of seven bytes
		series(name, field(2, []byte{2 << 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 127})), // more than 64 bits
		series(name, field(1, concat(text(1, "job"), text(2, strings.Repeat("long", 50)))), sample),
		concat(series(name, sample), field(3, concat(text(2, "m"), text(4, "not UTF-8: \xff")))),
		concat(series(name, sample), field(3, concat(text(2, "\xff"), text(4, "help")))),
		concat(series(name, sample), field(3, concat(text(2, "m"), text(4, "help"), text(5, "\xff")))),
		concat([]byte{4<<3 | 2, 0}, text(4, "__name__"), text(4, "m"), text(4, "\xff help"), field(5, concat(field(1, []byte{1, 2}), sample, field(5, []byte{3 << 3, 3})))),
	)
	for _, exemplar := range [][]prompb.Label{
		{{Name: "__name__", Value: "x"}, {Name: "b", Value: "2"}, {Name: "a", Value: "1"}}, {{Name: "a", Value: "1"}, {Name: "a", Value: "2"}}, {{Name: "", Value: "1"}},
		{{Name: "a", Value: ""}},
	} {
		req := writetest.OneSeries("__name__", "m")
		req.Timeseries[0].Exemplars = []prompb.Exemplar{{Labels: exemplar, Value: 1, Timestamp: 1}}
		bodies = append(bodies, writetest.Marshal(t, req))
	}
	return bodies
}

func TestUnusualBodiesAreReadable(t *testing.T) {
	for i, body := range unusualBodies(t) {
		for version := range remotewrite.Protocols() {
			for _, format := range All() {
				t.Run(strconv.Itoa(i)+" "+remotewrite.Protocols()[version].Message+" "+format.name, func(t *testing.T) { readable(t, version, body, format) })
			}
		}
	}
}

// readable checks the messages of a body in a format.
func readable(t *testing.T, version int, body []byte, format Format) {
	t.Helper()
	limits := remotewrite.DefaultLimits()
	protocol := remotewrite.Protocols()[version]
	for _, references := range []bool{false, format.ByPartition} {
		b := &batch.Batch{References: references}
		if protocol.Decode(b, body, limits) != nil {
			return
		}
		remotewrite.Validate(b, limits, nil)
		want := lines(b, format)
		var got []string
		for _, m := range encodeAs(b, format.name, Packing{Limit: 200}) {
			got = append(got, readMessage(t, format, m.Payload)...)
		}
		slices.Sort(got)
		slices.Sort(want)
		require.Equal(t, want, got, format.name)
	}
}

// lines returns a text for each sample, histogram, and exemplar of a batch, with
// everything that the format keeps of it.
func lines(b *batch.Batch, format Format) (all []string) {
	for i := range b.Series {
		s := &b.Series[i]
		labels := labelText(b.LabelsOf(s))
		start := func(v int64) string {
			if format.name == "json" || format.name == "packed" {
				return strconv.FormatInt(v, 10)
			}
			return ""
		}
		about := ""
		if m := s.Metadata; m != nil && (format.name == "json" || format.name == "packed") && *m != (batch.Metadata{}) {
			about = m.Type.String() + " " + strconv.Quote(m.Help) + " " + strconv.Quote(m.Unit)
		}
		add := func(kind string, timestamp, start string, value ...string) {
			all = append(all, strings.Join(append([]string{labels, about, kind, timestamp, start}, value...), " "))
		}
		for _, v := range batch.Slice(b.Samples, s.Samples) {
			if format.SamplesOnly {
				add("sample", strconv.FormatInt(v.Timestamp/1000, 10), "", strconv.FormatFloat(v.Value, 'g', -1, 64))
				continue
			}
			add("sample", strconv.FormatInt(v.Timestamp, 10), start(v.Start), floatText(v.Value))
		}
		if format.SamplesOnly {
			continue
		}
		for j := range batch.Slice(b.Histograms, s.Histograms) {
			h := &batch.Slice(b.Histograms, s.Histograms)[j]
			add("histogram", strconv.FormatInt(h.Timestamp, 10), start(h.Start), string(appendHistogram(nil, b, h)), strconv.FormatBool(batch.IsStale(h.Sum)))
		}
		for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
			add("exemplar", strconv.FormatInt(e.Timestamp, 10), "", labelText(batch.Slice(b.ExemplarLabels, e.Labels)), floatText(e.Value))
		}
	}
	return all
}

func labelText(labels []batch.Label) string {
	var all []string
	for _, l := range labels {
		all = append(all, strconv.Quote(l.Name)+"="+strconv.Quote(l.Value))
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func floatText(v float64) string {
	if batch.IsStale(v) {
		return "stale"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// readMessage reads a message as a consumer does, and returns its lines.
func readMessage(t *testing.T, format Format, payload []byte) []string {
	t.Helper()
	b := new(batch.Batch)
	limits := remotewrite.DefaultLimits()
	switch format.name {
	case "json":
		return []string{readJSON(t, payload)}
	case "json-kafka-adapter":
		return []string{readAdapter(t, payload)}
	case "protobuf":
		strictly(t, "types.proto", "TimeSeries", payload)
		require.NoError(t, remotewrite.DecodeV1(b, writetest.Field(1, payload), limits))
	case "packed":
		strictly(t, "io/prometheus/write/v2/types.proto", "Request", payload)
		require.NoError(t, remotewrite.DecodeV2(b, payload, limits))
	default:
		t.Fatalf("readMessage cannot read the format %s: add a case, and to lines what the format keeps", format.name)
	}
	return lines(b, format)
}

// strictly decodes a message with Google's library, which refuses texts that are not UTF-8.
func strictly(t *testing.T, file, message string, payload []byte) {
	t.Helper()
	files, err := descriptions()
	require.NoError(t, err)
	described, err := files.FindFileByPath(file)
	require.NoError(t, err)
	kind := described.Messages().ByName(protoreflect.Name(message))
	require.NoError(t, proto.Unmarshal(payload, dynamicpb.NewMessage(kind)), "%q", payload)
	shortTags(t, kind, payload)
}

// shortTags checks that tags and lengths have five bytes at most: the library of Python and C++ reads
// no longer ones.
func shortTags(t *testing.T, kind protoreflect.MessageDescriptor, payload []byte) {
	t.Helper()
	for len(payload) > 0 {
		number, wire, n := protowire.ConsumeTag(payload)
		require.LessOrEqual(t, n, 5)
		payload = payload[n:]
		size := protowire.ConsumeFieldValue(number, wire, payload)
		require.Positive(t, size)
		if field := kind.Fields().ByNumber(number); wire == protowire.BytesType {
			data, _ := protowire.ConsumeBytes(payload)
			require.LessOrEqual(t, size-len(data), 5)
			if field != nil && field.Message() != nil {
				shortTags(t, field.Message(), data)
			}
		}
		payload = payload[size:]
	}
}

// descriptions returns the definitions of the formats' messages.
var descriptions = sync.OnceValues(func() (*protoregistry.Files, error) {
	files := new(protoregistry.Files)
	for _, name := range []string{"types.proto", "remote.proto", "io/prometheus/write/v2/types.proto"} {
		zipped, err := gzip.NewReader(bytes.NewReader(gogo.FileDescriptor(name)))
		if err != nil {
			return nil, err
		}
		raw, err := io.ReadAll(zipped)
		if err != nil {
			return nil, err
		}
		description := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(raw, description); err != nil {
			return nil, err
		}
		described, err := protodesc.FileOptions{AllowUnresolvable: true}.New(description, files)
		if err != nil {
			return nil, err
		}
		if err := files.RegisterFile(described); err != nil {
			return nil, err
		}
	}
	return files, nil
})

func readJSON(t *testing.T, payload []byte) string {
	t.Helper()
	require.True(t, utf8.Valid(payload), "%q", payload)
	var m struct {
		Name             string
		Labels           map[string]string
		Timestamp        int64
		StartTimestamp   int64 `json:"start_timestamp"`
		Type, Unit, Help string
		Value            any
		Histogram        json.RawMessage
		Exemplar         *struct {
			Labels map[string]string
			Value  any
		}
		Stale bool
	}
	decoder := json.NewDecoder(bytes.NewReader(payload))
	require.NoError(t, decoder.Decode(&m), "%s", payload)
	value := func(v any, stale bool) string {
		if text, isText := v.(string); isText {
			if stale {
				return "stale"
			}
			return text
		}
		return strconv.FormatFloat(v.(float64), 'g', -1, 64)
	}
	labels := func(all map[string]string, name string) string {
		var list []batch.Label
		for n, v := range all {
			list = append(list, batch.Label{Name: n, Value: v})
		}
		if name != "" {
			list = append(list, batch.Label{Name: batch.NameLabel, Value: name})
		}
		return labelText(list)
	}
	about := ""
	if m.Type+m.Unit+m.Help != "" {
		if m.Type == "" {
			m.Type = "unknown"
		}
		about = m.Type + " " + strconv.Quote(m.Help) + " " + strconv.Quote(m.Unit)
	}
	head := labels(m.Labels, m.Name) + " " + about + " "
	timestamp, start := strconv.FormatInt(m.Timestamp, 10), strconv.FormatInt(m.StartTimestamp, 10)
	switch {
	case m.Histogram != nil:
		return head + "histogram " + timestamp + " " + start + " " + string(m.Histogram) + " " + strconv.FormatBool(m.Stale)
	case m.Exemplar != nil:
		return head + "exemplar " + timestamp + "  " + labels(m.Exemplar.Labels, "") + " " + value(m.Exemplar.Value, false)
	default:
		return head + "sample " + timestamp + " " + start + " " + value(m.Value, m.Stale)
	}
}

func readAdapter(t *testing.T, payload []byte) string {
	t.Helper()
	require.True(t, utf8.Valid(payload), "%q", payload)
	var m struct {
		Labels           map[string]string
		Timestamp, Value string
	}
	require.NoError(t, json.Unmarshal(payload, &m), "%s", payload)
	var list []batch.Label
	for n, v := range m.Labels {
		list = append(list, batch.Label{Name: n, Value: v})
	}
	at, err := time.Parse(time.RFC3339, m.Timestamp)
	require.NoError(t, err)
	v, err := strconv.ParseFloat(m.Value, 64)
	require.NoError(t, err)
	if math.IsNaN(v) {
		v = math.NaN()
	}
	return labelText(list) + "  sample " + strconv.FormatInt(at.Unix(), 10) + "  " + strconv.FormatFloat(v, 'g', -1, 64)
}
