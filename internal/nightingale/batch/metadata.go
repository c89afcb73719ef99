package batch

// KindUnknown is the type of a metric of unknown type.
const KindUnknown = "unknown"

// KindName names a metric type as Prometheus' text formats do.
func KindName(kind int32) string {
	switch kind {
	case 1:
		return "counter"
	case 2:
		return "gauge"
	case 3:
		return "histogram"
	case 4:
		return "gaugehistogram"
	case 5:
		return "summary"
	case 6:
		return "info"
	case 7:
		return "stateset"
	default:
		return KindUnknown
	}
}

// KindNumber is the inverse of KindName.
func KindNumber(kind string) int32 {
	switch kind {
	case "counter":
		return 1
	case "gauge":
		return 2
	case "histogram":
		return 3
	case "gaugehistogram":
		return 4
	case "summary":
		return 5
	case "info":
		return 6
	case "stateset":
		return 7
	default:
		return 0
	}
}

// Bounds of the remembered metadata of one family, in bytes.
const (
	MaxFamilyName = 256
	MaxFamilyUnit = 64
	MaxFamilyHelp = 1024
)
