package api

import (
	"encoding/json"
	"iter"
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
)

func (a *API) listBuses(w http.ResponseWriter, r *http.Request) {
	limit, after, err := page(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	found, err := pageOf(a.Registry.Snapshot().Buses(), func(b *model.Bus) string { return b.Name }, limit, after, holdsOf(r).answer)
	a.writePage(w, r, found, err)
}

// pageOf returns a page of objects in the order of their names: limit of them, or as many as fit
// into pageBytes. held is charged for the page and for the answer made from it.
func pageOf[T any](all iter.Seq[*T], name func(*T) string, limit int, after string, held *admission.Hold) (found list[json.RawMessage], err error) {
	found.Items = []json.RawMessage{}
	last, size := "", 0
	for one := range all {
		if name(one) <= after {
			continue
		}
		if len(found.Items) == limit || size >= pageBytes {
			found.Next = last
			break
		}
		text, err := encode(one)
		last, size = name(one), size+len(text)
		if err == nil && size > smallAnswer {
			err = held.Set(2 * int64(size))
		}
		if err != nil {
			return found, err
		}
		found.Items = append(found.Items, text)
	}
	return found, nil
}

func (a *API) writePage(w http.ResponseWriter, r *http.Request, found list[json.RawMessage], err error) {
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, found)
}

// bus returns the bus of the path.
func (a *API) bus(r *http.Request) (*store.Snapshot, *model.Bus, error) {
	s := a.Registry.Snapshot()
	b := s.Bus(chi.URLParam(r, "bus"))
	if b == nil {
		return nil, nil, refused(http.StatusNotFound, "there is no bus of that name")
	}
	return s, b, nil
}

func (a *API) getBus(w http.ResponseWriter, r *http.Request) {
	_, b, err := a.bus(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	w.Header().Set("ETag", etag(b.Revision))
	a.show(w, r, b)
}

func (a *API) putBus(w http.ResponseWriter, r *http.Request) {
	b, created, err := a.storeBus(w, r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	writeObject(w, statusOf(created), b.Revision, b)
}

func (a *API) storeBus(w http.ResponseWriter, r *http.Request) (b *model.Bus, created bool, err error) {
	c, err := condition(r, a.busRevision(r))
	if err != nil {
		return nil, false, err
	}
	body, err := a.readObject(w, r)
	if err != nil {
		return nil, false, err
	}
	given, err := model.DecodeBus(body, chi.URLParam(r, "bus"), a.Checks)
	if err != nil {
		return nil, false, err
	}
	return a.Registry.PutBus(r.Context(), given, c)
}

// busRevision returns the revision of the bus in the path, 0 if there is none.
func (a *API) busRevision(r *http.Request) int64 {
	if b := a.Registry.Snapshot().Bus(chi.URLParam(r, "bus")); b != nil {
		return b.Revision
	}
	return 0
}

func statusOf(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (a *API) deleteBus(w http.ResponseWriter, r *http.Request) {
	a.remove(w, r, a.busRevision(r), func(c store.Condition) error { return a.Registry.DeleteBus(r.Context(), chi.URLParam(r, "bus"), c) })
}

// remove deletes an object if the request's condition holds. now is its revision.
func (a *API) remove(w http.ResponseWriter, r *http.Request, now int64, remove func(store.Condition) error) {
	c, err := condition(r, now)
	if err == nil {
		err = remove(c)
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
