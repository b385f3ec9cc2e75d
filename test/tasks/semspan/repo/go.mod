module example.org/semspan

go 1.19
