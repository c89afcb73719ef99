package batch

// Metadata describes a metric family. Family is empty if the metadata came with a series.
type Metadata struct {
	Family, Help, Unit string
	Type               MetricType
	Invalid            bool   // the texts are not UTF-8: Validate removes it
	HelpRef, UnitRef   uint32 // references of Help and Unit, if they are complete symbols; otherwise 0
}

// MetadataRefs is a series' metadata in version 2, with references to symbols. Several pieces of
// metadata for a series are merged.
type MetadataRefs struct {
	Type       int32
	Help, Unit uint32
}

// Bounds of the remembered metadata of one family, in bytes.
const (
	MaxFamilyName = 256
	MaxFamilyUnit = 64
	MaxFamilyHelp = 1024
)

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
