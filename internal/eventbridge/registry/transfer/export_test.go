package transfer

import (
	"io"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// ReadBuses reads the buses of a file that was exported.
func ReadBuses(r io.Reader) (buses []model.Bus, err error) {
	f, err := readFile(r, nil)
	if err != nil {
		return nil, err
	}
	for _, o := range f.buses {
		buses = append(buses, *o.bus)
	}
	return buses, f.faults.Err()
}
