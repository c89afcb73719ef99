package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// etag is the ETag of a revision.
func etag(revision int64) string { return `"` + strconv.FormatInt(revision, 10) + `"` }

// condition reads If-Match and If-None-Match (RFC 9110, section 13.1). now is the object's present
// revision, 0 if there is no object. Of several ETags, the one of that revision counts.
func condition(r *http.Request, now int64) (c store.Condition, err error) {
	match, none := r.Header.Values("If-Match"), r.Header.Values("If-None-Match")
	switch {
	case len(match) > 0 && len(none) > 0:
		return c, refused(http.StatusBadRequest, "If-Match and If-None-Match cannot both be given")
	case len(none) > 0:
		if len(none) > 1 || strings.TrimSpace(none[0]) != "*" {
			return c, refused(http.StatusBadRequest, "If-None-Match must be *")
		}
		c.New = true
	case len(match) == 1 && strings.TrimSpace(match[0]) == "*":
		c.Exists = true
	case len(match) > 0:
		revisions, ok := revisionsOf(strings.Join(match, ","))
		switch {
		case !ok:
			return c, refused(http.StatusBadRequest, `If-Match must be *, or ETags that this API gave, such as "17"`)
		case now > 0 && slices.Contains(revisions, now):
			c.Revision = now
		case len(revisions) > 0:
			c.Revision = revisions[0]
		default:
			return c, refused(http.StatusPreconditionFailed, "weak ETags (W/) match nothing here: give the one that this API gave")
		}
	}
	return c, nil
}

// refuseConditions refuses If-Match and If-None-Match: jobs have no revision to compare.
func refuseConditions(r *http.Request) error {
	if len(r.Header.Values("If-Match"))+len(r.Header.Values("If-None-Match")) > 0 {
		return refused(http.StatusBadRequest, "this request takes neither If-Match nor If-None-Match: jobs have no revision")
	}
	return nil
}

// revisionsOf returns the revisions of the strong ETags in a list. It leaves out weak ones, which a
// proxy may have made. ok is false if one is not an ETag of this API.
func revisionsOf(list string) (revisions []int64, ok bool) {
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		tag, weak := strings.CutPrefix(one, "W/")
		revision, err := strconv.ParseInt(strings.Trim(tag, `"`), 10, 64)
		if err != nil || revision < 1 || etag(revision) != tag {
			return nil, false
		}
		if !weak {
			revisions = append(revisions, revision)
		}
	}
	return revisions, true
}
