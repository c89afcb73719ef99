package batch

// MetricType is the type of a metric family. The numbers are those of both versions of remote write.
type MetricType int32

// The types of metrics.
const (
	TypeUnknown MetricType = iota
	TypeCounter
	TypeGauge
	TypeHistogram
	TypeGaugeHistogram
	TypeSummary
	TypeInfo
	TypeStateSet
)

// TypeOf returns the type with a number from a request, TypeUnknown if there is none.
func TypeOf(number int32) MetricType {
	if number < 0 || number > int32(TypeStateSet) {
		return TypeUnknown
	}
	return MetricType(number)
}

// String returns the name of the type in Prometheus' text formats.
func (t MetricType) String() string {
	return [...]string{"unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset"}[t]
}

// Bounds of the remembered metadata of one family, in bytes.
const (
	MaxFamilyName = 256
	MaxFamilyUnit = 64
	MaxFamilyHelp = 1024
)
