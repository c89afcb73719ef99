package api

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// pathNames returns the names in the path: of the bus, and of the subscriber if there is one.
func pathNames(r *http.Request) (bus, subscriber string) {
	return chi.URLParam(r, "bus"), chi.URLParam(r, "subscriber")
}

// bus returns the bus of the path.
func (a *API) bus(r *http.Request) (*store.Snapshot, *model.Bus, error) {
	name, _ := pathNames(r)
	s := a.Registry.Snapshot()
	b := s.Bus(name)
	if b == nil {
		return nil, nil, refused(http.StatusNotFound, "there is no bus of that name")
	}
	return s, b, nil
}

// subscriber returns the subscriber of the path.
func (a *API) subscriber(r *http.Request) (*model.Subscriber, error) {
	s, b, err := a.bus(r)
	if err != nil {
		return nil, err
	}
	_, name := pathNames(r)
	sub := s.Subscriber(b.Name, name)
	if sub == nil {
		return nil, refused(http.StatusNotFound, "the bus has no subscriber of that name")
	}
	return sub, nil
}

func (a *API) listBuses(w http.ResponseWriter, r *http.Request) error {
	return writePage(w, r, a.Registry.Snapshot().Buses(), func(b *model.Bus) string { return b.Name })
}

func (a *API) listSubscribers(w http.ResponseWriter, r *http.Request) error {
	s, b, err := a.bus(r)
	if err != nil {
		return err
	}
	return writePage(w, r, s.Subscribers(b.Name), func(s *model.Subscriber) string { return s.Name })
}

func (a *API) getBus(w http.ResponseWriter, r *http.Request) error {
	_, b, err := a.bus(r)
	if err != nil {
		return err
	}
	return writeObject(w, false, b.Revision, b)
}

func (a *API) getSubscriber(w http.ResponseWriter, r *http.Request) error {
	s, err := a.subscriber(r)
	if err != nil {
		return err
	}
	return writeObject(w, false, s.Revision, s)
}

func (a *API) putBus(w http.ResponseWriter, r *http.Request) error {
	c, body, err := a.readObject(w, r)
	if err != nil {
		return err
	}
	name, _ := pathNames(r)
	given, err := model.DecodeBus(body, name, a.Checks)
	if err != nil {
		return err
	}
	b, created, err := a.Registry.PutBus(r.Context(), given, c)
	if err != nil {
		return err
	}
	return writeObject(w, created, b.Revision, b)
}

func (a *API) putSubscriber(w http.ResponseWriter, r *http.Request) error {
	c, body, err := a.readObject(w, r)
	if err != nil {
		return err
	}
	bus, name := pathNames(r)
	given, err := model.DecodeSubscriber(body, bus, name, a.Checks)
	if err != nil {
		return err
	}
	past := given.Start != "" && given.Start != "latest"
	if past && a.Processor == nil && a.Registry.Snapshot().Subscriber(bus, name) == nil {
		return refused(http.StatusNotImplemented, "a start in the past needs the role processor, which this process does not have: ask one that does")
	}
	s, created, err := a.Registry.PutSubscriber(r.Context(), given, c)
	if err != nil {
		return err
	}
	if created && a.Processor != nil {
		if _, _, err := a.Processor.Start(context.WithoutCancel(r.Context()), s.Bus, s.Name); err != nil {
			a.Log.Warn("a new subscriber does not get the events from before it was created: replay them", zap.String("bus", s.Bus), zap.String("subscriber", s.Name), zap.Error(err))
		}
	}
	return writeObject(w, created, s.Revision, s)
}

// deleteObject deletes the subscriber in the path, or the bus if the path has no subscriber.
func (a *API) deleteObject(w http.ResponseWriter, r *http.Request) error {
	c, err := condition(r)
	if err != nil {
		return err
	}
	if bus, name := pathNames(r); name == "" {
		err = a.Registry.DeleteBus(r.Context(), bus, c)
	} else {
		err = a.Registry.DeleteSubscriber(r.Context(), bus, name, c)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// setState returns the handler of requests that change only a subscriber's state.
func (a *API) setState(to model.State) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		c, err := condition(r)
		if err != nil {
			return err
		}
		bus, name := pathNames(r)
		s, err := a.Registry.ChangeState(r.Context(), bus, name, to, "", c)
		if err != nil {
			return err
		}
		return writeObject(w, false, s.Revision, s)
	}
}
