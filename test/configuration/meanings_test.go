package configuration_test

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	root   = "../../"
	module = "github.com/aviaryhq/aviary/"
)

// update reports whether files are to be written: go test ./test/configuration -args update.
func update() bool { return slices.Contains(flag.Args(), "update") }

// TestMeanings: -config.print shows for each key the comment of its field.
func TestMeanings(t *testing.T) {
	types := map[reflect.Type]bool{}
	for _, service := range services() {
		collect(reflect.TypeOf(service.defaults), types)
	}
	var lines []string
	for of := range types {
		comments := commentsOf(t, of)
		for i := range of.NumField() {
			field := of.Field(i)
			if !isKey(field) {
				continue
			}
			text := comments[field.Name]
			assert.NotEmpty(t, text, "%s.%s has no comment", of, field.Name)
			lines = append(lines, fmt.Sprintf("%s.%s.%s: %s", of.PkgPath(), of.Name(), field.Name, text))
		}
	}
	slices.Sort(lines)
	want := strings.Join(lines, "\n") + "\n"
	const file = root + "internal/config/meanings.txt"
	if update() {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.True(t, bytes.Equal([]byte(want), got), "comments have changed: make configs")
}

// isKey reports whether a field is a key by itself: neither inlined nor left out.
func isKey(field reflect.StructField) bool {
	name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
	return name != "" && name != "-" && options != "inline"
}

// collect finds the types of all sections below t.
func collect(t reflect.Type, types map[reflect.Type]bool) {
	for _, kind := range kindsOf(t) {
		collect(kind, types)
	}
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), module) || types[t] {
		return
	}
	types[t] = true
	for i := range t.NumField() {
		if field := t.Field(i); field.Tag.Get("yaml") != "" && field.Tag.Get("yaml") != "-" {
			collect(field.Type, types)
		}
	}
}

// commentsOf returns the comments of a type's fields, with the names of keys for those of fields.
// Fields in one paragraph share a comment.
func commentsOf(t *testing.T, of reflect.Type) map[string]string {
	t.Helper()
	files, err := filepath.Glob(root + strings.TrimPrefix(of.PkgPath(), module) + "/*.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !bytes.Contains(text, []byte(of.Name()+" struct")) {
			continue // most files: parsing takes long
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
		require.NoError(t, err)
		if object := parsed.Scope.Lookup(of.Name()); object != nil {
			spec, _ := object.Decl.(*ast.TypeSpec)
			body, ok := spec.Type.(*ast.StructType)
			require.True(t, ok)
			return fieldComments(of, body)
		}
	}
	require.Fail(t, "no declaration", "%s", of)
	return nil
}

func fieldComments(of reflect.Type, body *ast.StructType) map[string]string {
	comments := map[string]string{}
	text := ""
	for _, field := range body.Fields.List {
		switch {
		case field.Doc != nil:
			text = field.Doc.Text()
		case field.Comment != nil:
			text = field.Comment.Text()
		}
		for _, name := range field.Names {
			comments[name.Name] = strings.Join(strings.Fields(text), " ")
		}
	}
	named := map[string]string{}
	for name, own := range comments {
		text := own
		for i := range of.NumField() {
			field := of.Field(i)
			if key, _, _ := strings.Cut(field.Tag.Get("yaml"), ","); isKey(field) && (comments[field.Name] == own || strings.Count(key, "_") > 0) {
				text = regexp.MustCompile(`\b`+field.Name+`\b`).ReplaceAllString(text, key)
			}
		}
		named[name] = regexp.MustCompile(`\[([A-Z][A-Za-z.]*)\]`).ReplaceAllString(text, "$1")
	}
	return named
}
