package transform

import (
	"reflect"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// maxScannedHeaders is up to how many headers a linear search is faster than making a map.
const maxScannedHeaders = 16

// headerMap presents headers as a map of CEL. It makes the map only if there are many, or for
// operations other than the lookup of one name.
type headerMap struct {
	headers []message.Header
	full    traits.Mapper // nil until it is needed
}

func (h *headerMap) all() traits.Mapper {
	if h.full == nil {
		values := make(map[string]string, len(h.headers))
		for i := range h.headers {
			values[h.headers[i].Name] = string(h.headers[i].Value)
		}
		h.full = types.NewStringStringMap(types.DefaultTypeAdapter, values)
	}
	return h.full
}

// Find implements has() and the index operator with a constant name.
func (h *headerMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok || len(h.headers) > maxScannedHeaders {
		return h.all().Find(key)
	}
	for i := len(h.headers) - 1; i >= 0; i-- {
		if h.headers[i].Name == string(name) {
			return types.String(h.headers[i].Value), true
		}
	}
	return nil, false
}

// Contains implements the operator in.
func (h *headerMap) Contains(key ref.Val) ref.Val {
	_, found := h.Find(key)
	return types.Bool(found)
}

// Get implements the index operator with a name that is not constant.
func (h *headerMap) Get(key ref.Val) ref.Val {
	if v, found := h.Find(key); found {
		return v
	}
	return h.all().Get(key) // its error
}

func (h *headerMap) ConvertToNative(t reflect.Type) (any, error) { return h.all().ConvertToNative(t) }
func (h *headerMap) ConvertToType(t ref.Type) ref.Val            { return h.all().ConvertToType(t) }
func (h *headerMap) Equal(other ref.Val) ref.Val                 { return h.all().Equal(other) }
func (h *headerMap) Type() ref.Type                              { return types.MapType }
func (h *headerMap) Value() any                                  { return h.all().Value() }
func (h *headerMap) Iterator() traits.Iterator                   { return h.all().Iterator() }
func (h *headerMap) Size() ref.Val                               { return h.all().Size() }
