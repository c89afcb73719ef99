module github.com/AthenZ/athenz

go 1.26
