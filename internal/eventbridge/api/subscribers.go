package api

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
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
	found, err := pageOf(s.Subscribers(b.Name), func(s *model.Subscriber) string { return s.Name }, limit, after, holdsOf(r).answer)
	a.writePage(w, r, found, err)
}

// subscriber returns the subscriber of the path.
func (a *API) subscriber(r *http.Request) (*model.Subscriber, error) {
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
	w.Header().Set("ETag", etag(s.Revision))
	a.show(w, r, s)
}

func (a *API) putSubscriber(w http.ResponseWriter, r *http.Request) {
	s, created, err := a.storeSubscriber(w, r)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	if created && a.Processor != nil {
		if _, _, err := a.Processor.Start(context.WithoutCancel(r.Context()), s.Bus, s.Name); err != nil {
			a.Log.Warn("a new subscriber does not get the events from before it was created: replay them", zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.Error(err))
		}
	}
	writeObject(w, statusOf(created), s.Revision, s)
}

func (a *API) storeSubscriber(w http.ResponseWriter, r *http.Request) (s *model.Subscriber, created bool, err error) {
	c, err := condition(r, a.subscriberRevision(r))
	if err != nil {
		return nil, false, err
	}
	body, err := a.readObject(w, r)
	if err != nil {
		return nil, false, err
	}
	given, err := model.DecodeSubscriber(body, chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber"), a.Checks)
	if err != nil {
		return nil, false, err
	}
	past := given.Start != "" && given.Start != "latest"
	if past && a.Processor == nil && a.Registry.Snapshot().Subscriber(given.Bus, given.Name) == nil {
		return nil, false, &statusError{status: http.StatusNotImplemented, text: "a start in the past needs the role processor, which this process does not have: ask one that does"}
	}
	return a.Registry.PutSubscriber(r.Context(), given, c)
}

// subscriberRevision returns the revision of the subscriber in the path, 0 if there is none.
func (a *API) subscriberRevision(r *http.Request) int64 {
	if s := a.Registry.Snapshot().Subscriber(chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber")); s != nil {
		return s.Revision
	}
	return 0
}

func (a *API) deleteSubscriber(w http.ResponseWriter, r *http.Request) {
	a.remove(w, r, a.subscriberRevision(r), func(c store.Condition) error {
		return a.Registry.DeleteSubscriber(r.Context(), chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber"), c)
	})
}

// setState answers requests that change only the state.
func (a *API) setState(to model.State) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := condition(r, a.subscriberRevision(r))
		var s *model.Subscriber
		if err == nil {
			s, err = a.Registry.ChangeState(r.Context(), chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber"), to, "", c)
		}
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		writeObject(w, http.StatusOK, s.Revision, s)
	}
}
