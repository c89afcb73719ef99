package nightingale

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/door"
)

// receiver answers write requests.
type receiver struct {
	log       *zap.Logger
	refusals  door.RefusalLog
	metrics   *metrics
	limits    Limits
	timeout   time.Duration
	protocols []protocol
	format    format
	budget    *door.Budget
	families  *families
	*deliveries
	settings atomic.Pointer[settings] // changed by SIGHUP, see take

	messageBytes   int
	exemplarSeries bool
	topics         *topics // the publishing stage

	bodies          sync.Pool // of *[]byte
	workspaces      sync.Pool // of *workspace
	largeWorkspaces sync.Pool
	outgoings       sync.Pool // of *outgoing
}

// workspace is the memory in which a request is decoded. A request has one once its
// body is there, so that slow senders have none, and until the messages are encoded,
// before their acknowledgement is waited for.
type workspace struct {
	decoded, scratch []byte
	batch            batch
	splitting        splitting
}

func newReceiver(log *zap.Logger, cfg Config, m *metrics, out *topics) *receiver {
	return &receiver{
		log: log, refusals: door.NewRefusalLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout,
		protocols: protocols(), format: findFormat(cfg.Format), topics: out,
		budget:     door.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.Tenants.InFlightShare, m.inFlightSize),
		families:   newFamilies(cfg.Limits.MetadataFamilies),
		deliveries: newDeliveries(cfg.Dedup), messageBytes: int(cfg.MessageBytes),
		exemplarSeries: cfg.ExemplarSeries == acceptSeries,
	}
}

// writePath is where remote write comes in.
const writePath = "/api/v1/write"

// handler routes the service's requests. Other paths and methods are told the right
// one: a wrong path is the first mistake in a writer's configuration.
func (v *receiver) handler() http.Handler {
	router := chi.NewRouter()
	router.Post(writePath, v.write)
	router.NotFound(func(w http.ResponseWriter, r *http.Request) {
		v.refuse(w, r, door.Elsewhere(r.URL.Path, "remote write goes by POST to "+writePath))
	})
	router.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", http.MethodPost)
		v.refuse(w, r, door.Method(r, http.MethodPost))
	})
	return router
}

// refuse answers a request that is no write request at all.
func (v *receiver) refuse(w http.ResponseWriter, r *http.Request, err error) {
	v.metrics.requests.WithLabelValues(strconv.Itoa(v.answer(w, r, err))).Inc()
}

// write answers one request.
func (v *receiver) write(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	v.metrics.inFlight.Inc()
	defer v.metrics.inFlight.Dec()
	status := v.answer(w, r, v.handle(w, r))
	v.metrics.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	v.metrics.requestTime.Observe(time.Since(began).Seconds())
}

// handle is the chain. It returns nil when all that the request carries is
// acknowledged by the broker.
func (v *receiver) handle(w http.ResponseWriter, r *http.Request) error {
	watch := &stopwatch{metrics: v.metrics, last: time.Now()}
	spoken, err := negotiate(v.protocols, r.Header)
	if err != nil {
		return err
	}
	if spoken.written {
		tellWritten(w.Header(), counts{}) // until something is
	}
	tenant, err := tenantOf(r.Header)
	if err != nil {
		return err
	}
	held := v.budget.Hold(tenant)
	defer held.Release()

	body := v.newBody()
	if *body, err = door.ReadBody(w, r, *body, held, v.limits.body()); err != nil {
		return err
	}
	door.LiftDeadline(w)
	watch.lap("read")
	v.metrics.bodyBytes.WithLabelValues("compressed").Add(float64(len(*body)))

	ctx, cancel := context.WithTimeout(r.Context(), v.timeout)
	defer cancel()
	mine := &claim{ledger: v.ledger, key: bodyKey{tenant: tenant, message: spoken.message}}
	defer mine.give(errUnfinished)
	out := v.newOutgoing()
	carried, err := v.translate(ctx, *body, spoken, held, out, watch, mine)
	v.releaseBody(body)
	if err != nil {
		mine.give(err)
		return err
	}
	carried, err = v.submit(ctx, mine, carried, out, held)
	watch.lap("publish")
	if err != nil {
		return err
	}
	if spoken.written {
		tellWritten(w.Header(), carried.valid)
	}
	return carried.invalid.err(carried.series())
}

// translate encodes the messages of a request's body into out. What it returns refers
// to nothing of the body. Of a body that another request has brought before nothing is
// encoded.
func (v *receiver) translate(ctx context.Context, body []byte, spoken protocol, held *door.Hold, out *outgoing, watch *stopwatch, mine *claim) (c contents, err error) {
	if !mine.make(body) {
		return c, nil
	}
	size, err := decodedLen(body, v.limits)
	if err != nil {
		return c, err
	}
	if err := held.Set(int64(len(body)) + int64(size)); err != nil {
		return c, err
	}
	space := v.newWorkspace(len(body))
	defer v.release(space)
	if space.decoded, err = decompress(space.decoded, body, size); err != nil {
		return c, err
	}
	watch.lap("decompress")
	v.metrics.bodyBytes.WithLabelValues("decoded").Add(float64(len(space.decoded)))

	now := v.settings.Load()
	b := &space.batch
	b.elements.held, b.exemplarSeries, b.form = held, v.exemplarSeries, v.form(spoken, now.rules)
	if err := spoken.decode(b, space.decoded, v.limits); err != nil {
		return c, err
	}
	c.metadata = len(b.metadata)
	watch.lap("decode")

	c.invalid, space.scratch = b.validate(v.limits, space.scratch)
	for i := range b.series {
		c.valid.add(&b.series[i])
	}
	if err := now.quotas.admit(mine.key.tenant, c.valid.entries()); err != nil {
		v.metrics.count(c.valid, "throttled")
		return c, err
	}
	c.forgotten = v.families.learn(mine.key.tenant, b.metadata)
	v.families.describe(mine.key.tenant, b)
	c.filtered, space.scratch = now.rules.apply(b, space.scratch)
	watch.lap("validate")

	// A message repeats its series' labels, which can make far more of a body.
	out.properties = propertiesOf(mine.key.tenant)
	out.held, out.reserved = held, v.format.size(b)+c.valid.entries()*messageBytes
	if err := held.Grow(int64(out.reserved)); err != nil {
		return c, err
	}
	if err := v.encode(ctx, mine, space, out, &c); err != nil {
		return c, err
	}
	watch.lap("encode")
	v.metrics.bodyBytes.WithLabelValues("published").Add(float64(out.bytes))
	return c, nil
}

// form is how the format takes labels, as far as what looks at them before lets it.
func (v *receiver) form(spoken protocol, r *rules) form {
	symbolic := v.format.symbols || v.format.references && spoken.symbols
	return form{
		symbolic: symbolic,
		lean:     symbolic && r == nil && !v.topics.template.perSeries,
		lateKeys: v.format.byPartition && r == nil,
	}
}

// answer writes the response and returns its status. What is refused is counted, and
// logged, see door.RefusalLog.
func (v *receiver) answer(w http.ResponseWriter, r *http.Request, err error) int {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	}
	refused := (*door.Refusal)(nil)
	if !errors.As(err, &refused) {
		refused = &door.Refusal{Status: http.StatusInternalServerError, Reason: "internal", Text: err.Error()}
	}
	v.metrics.refused.WithLabelValues(refused.Reason).Inc()
	v.refusals.Note(r, r.Header.Get(tenantHeader), refused)
	if refused.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(refused.RetryAfter.Seconds())))
	}
	if refused.HangUp {
		w.Header().Set("Connection", "close")
	}
	http.Error(w, door.Cut(refused.Text, door.MaxAnswer), refused.Status)
	return refused.Status
}

// contents is what a request carries.
type contents struct {
	valid     counts
	invalid   rejected
	filtered  filtered // of the valid ones
	metadata  int
	forgotten int // metadata entries that there was no room for
}

// series is the number of them, invalid ones included.
func (c *contents) series() int { return c.valid.series + c.invalid.counts.series }

func (v *receiver) count(c contents, err error) {
	if left := c.filtered.total(); err == nil {
		v.metrics.count(c.valid.without(left), "written")
		v.metrics.count(left, "filtered")
		for reason, n := range c.filtered {
			if entries := n.entries(); entries > 0 {
				v.metrics.filtered.WithLabelValues(filterReason(reason)).Add(float64(entries))
			}
		}
	} else {
		v.metrics.count(c.valid, "unwritten")
	}
	if c.invalid.counts.series > 0 {
		v.metrics.count(c.invalid.counts, "rejected")
	}
	for reason, n := range c.invalid.reasons {
		v.metrics.rejected.WithLabelValues(reason).Add(float64(n))
	}
	v.metrics.metadata.WithLabelValues("remembered").Add(float64(c.metadata - c.forgotten))
	v.metrics.metadata.WithLabelValues("ignored").Add(float64(c.forgotten))
}

func (v *receiver) newBody() *[]byte {
	if body, ok := v.bodies.Get().(*[]byte); ok {
		return body
	}
	return new([]byte)
}

// releaseBody keeps the memory of a body for another one, unless it is large: a sender
// that sends little has no more of it than another has sent.
func (v *receiver) releaseBody(body *[]byte) {
	if cap(*body) <= keepBody {
		v.bodies.Put(body)
	}
}

// Workspaces that were used are kept for requests of the same kind, large or not: so
// there are no more large ones than the bytes in flight have let be at one time.
const (
	largeBody = 192 << 10 // compressed
	keepSmall = 4 << 20   // the largest that is kept for any request
	keepLarge = 48 << 20  // and for large ones
)

func (v *receiver) newWorkspace(body int) *workspace {
	pool := &v.workspaces
	if body > largeBody {
		pool = &v.largeWorkspaces
	}
	if space, ok := pool.Get().(*workspace); ok {
		return space
	}
	return new(workspace)
}

// release keeps the workspace for another request unless it has grown beyond measure.
func (v *receiver) release(space *workspace) {
	space.batch.reset()
	switch size := cap(space.decoded) + cap(space.scratch) + space.batch.size(); {
	case size <= keepSmall:
		v.workspaces.Put(space)
	case size <= keepLarge:
		v.largeWorkspaces.Put(space)
	}
}

// releaseOutgoing keeps messages' memory for another request unless it has grown large.
func (v *receiver) releaseOutgoing(out *outgoing) {
	if cap(out.arena)+cap(out.records)*messageBytes <= 2*keepBuffer {
		v.outgoings.Put(out)
	}
}

func (v *receiver) newOutgoing() *outgoing {
	if out, ok := v.outgoings.Get().(*outgoing); ok {
		out.reset()
		return out
	}
	return new(outgoing)
}
