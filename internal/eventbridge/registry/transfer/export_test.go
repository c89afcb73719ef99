package transfer

import (
	"io"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// ReadBuses reads the buses of a file that was exported.
func ReadBuses(r io.Reader) (buses []model.Bus, err error) {
	f, err := readFile(r, Options{})
	if err != nil {
		return nil, err
	}
	for _, key := range f.buses {
		buses = append(buses, *f.objects[key].bus)
	}
	return buses, nil
}
