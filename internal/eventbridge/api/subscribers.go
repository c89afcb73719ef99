package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

func (a *API) listSubscribers(w http.ResponseWriter, r *http.Request) {
	limit, after, err := page(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	s, b, err := a.bus(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	write(w, http.StatusOK, pageOf(s.Subscribers(b.Name), func(s *registry.Subscriber) string { return s.Name }, limit, after))
}

// subscriber returns the subscriber of the path.
func (a *API) subscriber(r *http.Request) (*registry.Subscriber, error) {
	s, b, err := a.bus(r)
	if err != nil {
		return nil, err
	}
	sub := s.Subscriber(b.Name, chi.URLParam(r, "subscriber"))
	if sub == nil {
		return nil, refused(http.StatusNotFound, "the bus has no subscriber of that name")
	}
	return sub, nil
}

func (a *API) getSubscriber(w http.ResponseWriter, r *http.Request) {
	s, err := a.subscriber(r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	writeObject(w, http.StatusOK, s.Revision, s)
}

func (a *API) putSubscriber(w http.ResponseWriter, r *http.Request) {
	s, created, err := a.storeSubscriber(w, r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	writeObject(w, statusOf(created), s.Revision, s)
}

func (a *API) storeSubscriber(w http.ResponseWriter, r *http.Request) (s *registry.Subscriber, created bool, err error) {
	c, err := condition(r)
	if err != nil {
		return nil, false, err
	}
	body, err := readObject(w, r)
	if err != nil {
		return nil, false, err
	}
	given, err := registry.DecodeSubscriber(body, chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber"), a.Checks)
	if err != nil {
		return nil, false, err
	}
	return a.Registry.PutSubscriber(r.Context(), given, c)
}

func (a *API) deleteSubscriber(w http.ResponseWriter, r *http.Request) {
	c, err := condition(r)
	if err == nil {
		err = a.Registry.DeleteSubscriber(r.Context(), chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber"), c)
	}
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// setState answers requests that change the state only.
func (a *API) setState(to registry.State) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s, err := a.Registry.SetState(r.Context(), chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber"), to, "")
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		writeObject(w, http.StatusOK, s.Revision, s)
	}
}
